"""What tests of tensorplug and of its backends use: fake devices and the conformance kit."""
