"""A worker: claims jobs, runs their handlers, says how they ended. One process, one event loop."""
