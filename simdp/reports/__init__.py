"""Tables, traces and plots of results, which they leave unchanged."""
