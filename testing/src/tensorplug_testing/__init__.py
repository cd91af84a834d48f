"""Fake devices and the conformance kit, for tests of tensorplug and of its backends."""
