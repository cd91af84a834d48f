"""The entry point."""

import tensorplug

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score():
    return 1


@tensorplug.hookimpl
def tensorplug_devices():
    from tensorplug_arrays.device import ArraysDevice

    return [ArraysDevice()]
