"""What comm hooks keep from step to step, and what their work takes on a device."""
