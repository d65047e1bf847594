# Fuzz targets, one a kind of file that others write: tests/fuzz/X_fuzz.cpp -> X_fuzz, with its seeds in corpus/X.
# tools/fuzz.py builds and runs them.
add_library(fuzz_parts STATIC src/engine/cache_file.cpp src/engine/cache_tiers.cpp src/engine/prefix_cache.cpp
            src/engine/kv_cache.cpp src/engine/state_pool.cpp src/cli/npy.cpp)
target_link_libraries(fuzz_parts PUBLIC si_model si_load si_text si_ops si_core)
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/*_fuzz.cpp)
foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE fuzz_parts)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  list(APPEND fuzz_targets ${name})
endforeach()
add_custom_target(fuzz_targets DEPENDS ${fuzz_targets})
