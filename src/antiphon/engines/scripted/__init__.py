"""The engine `scripted`: says what a script tells it to, at the pace the script tells."""
