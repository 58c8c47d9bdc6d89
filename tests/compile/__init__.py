"""Tests of compile: NVRTC, what ptxas reports, the SASS lint. All real, none needs a GPU."""
