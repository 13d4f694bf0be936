"""HOW IT LOOKS: tables, traces and plots of results; nothing here changes what it reads."""
