"""The engine `scripted`: answers from a script, at the pace of the script."""
