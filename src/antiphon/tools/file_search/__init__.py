"""Searches the files of vector stores: reads them, cuts them into chunks, and finds chunks by meaning and by words."""
