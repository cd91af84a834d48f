"""Resumes runs after a device was lost: `running.until` enters it when an attempt failed.

`Scheduler.take_back` uses it, too, when the user gives a lost device back.
"""
