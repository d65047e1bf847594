# Fused multiply-add is allowed in the dot products alone, where each product feeds exactly one sum.
set_source_files_properties(src/cpu/dot.cpp PROPERTIES COMPILE_OPTIONS "-ffp-contract=fast")
