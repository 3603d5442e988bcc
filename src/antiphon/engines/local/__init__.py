"""The engine `local`: a model that llama.cpp runs inside this process."""
