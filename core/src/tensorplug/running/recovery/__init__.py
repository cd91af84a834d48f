"""Resumes runs after a device was lost. Only `running.until` enters it, when an attempt failed."""
