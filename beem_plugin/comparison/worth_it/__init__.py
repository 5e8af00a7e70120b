"""Is early exit worth it on these data? Exits against plain networks and cascades of them, at equal cost."""
