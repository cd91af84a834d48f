"""Plans what runs where, in which order and in which memory. Calls no stream."""
