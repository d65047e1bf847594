# Fused multiply-add is allowed in dot products and exponentials alone, where each product feeds exactly one sum.
set_source_files_properties(src/cpu/dot.cpp src/cpu/exponentials.cpp PROPERTIES COMPILE_OPTIONS "-ffp-contract=fast")
