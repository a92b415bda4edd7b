"""Pure rules of following a run: place, continuity, pace, outage, ending."""
