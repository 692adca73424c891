"""Running a method: chains over devices, chunk by chunk."""
