"""Hides an installed `cuda.pathfinder`: a real cuBLASLt must not compute on emulated GPUs."""
