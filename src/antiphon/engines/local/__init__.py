"""The engine `local`: a model in this process or a child of it, by llama.cpp."""
