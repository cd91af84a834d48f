"""A schedule as a page of HTML: what runs where and why, what is copied, what lies in memory."""
