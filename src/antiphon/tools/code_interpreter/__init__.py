"""Runs the model's Python in containers: `containers` keeps them and their files, a kernel runs the code behind two walls."""
