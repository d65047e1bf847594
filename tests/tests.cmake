# What crosses folders: the vocabulary case by case, and whole models. Each list of cases is compiled once for the CPU and
# once into gpu_test, the one binary that is carried to a machine with a GPU.
file(GLOB op_cases CONFIGURE_DEPENDS tests/ops/*.cpp)
add_executable(op_cases_test ${op_cases})
target_link_libraries(op_cases_test PRIVATE si_model si_cpu gtest gtest_main)
gtest_discover_tests(op_cases_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600)

file(GLOB model_cases CONFIGURE_DEPENDS tests/models/*.cpp)
add_executable(model_cases_test ${model_cases})
target_link_libraries(model_cases_test PRIVATE si_engine si_cpu gtest gtest_main)
gtest_discover_tests(model_cases_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600)

# Commands with backends made for the test.
file(GLOB command_cases CONFIGURE_DEPENDS tests/commands/*.cpp)
add_executable(command_cases_test ${command_cases})
target_link_libraries(command_cases_test PRIVATE si_cli si_cpu gtest gtest_main)
target_compile_definitions(command_cases_test PRIVATE SPARKINFER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
gtest_discover_tests(command_cases_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600)

# The server with a model that says what a script has, for tests of clients.
add_library(si_scripted STATIC tests/serve/script.cpp tests/serve/scripted_backend.cpp)
target_include_directories(si_scripted PUBLIC tests/serve)
target_link_libraries(si_scripted PUBLIC si_cli si_cpu)
add_executable(serve_cases_test tests/serve/scripted_backend_test.cpp tests/serve/saved_cache_test.cpp)
target_link_libraries(serve_cases_test PRIVATE si_scripted gtest gtest_main)
target_compile_definitions(serve_cases_test PRIVATE SPARKINFER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
gtest_discover_tests(serve_cases_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600)
add_executable(scripted_serve tests/serve/scripted_serve.cpp)
target_link_libraries(scripted_serve PRIVATE si_scripted)

if(SPARKINFER_CUDA)
  file(GLOB gpu_cases CONFIGURE_DEPENDS tests/gpu/*.cpp)
  list(FILTER gpu_cases EXCLUDE REGEX "_bench.cpp$")
  add_executable(gpu_test ${op_cases} ${model_cases} ${gpu_cases})
  target_compile_definitions(gpu_test PRIVATE SPARKINFER_CUDA)
  target_link_libraries(gpu_test PRIVATE si_engine si_cpu si_cuda gtest -static-libstdc++ -static-libgcc)
  add_executable(gpu_load_bench tests/gpu/load_bench.cpp)
  target_link_libraries(gpu_load_bench PRIVATE si_engine si_cuda -static-libstdc++ -static-libgcc)
  # What is told of a tape without a GPU: runs anywhere.
  add_executable(lowering_test tests/lowering/lowering_test.cpp)
  target_link_libraries(lowering_test PRIVATE si_cuda gtest gtest_main)
  gtest_discover_tests(lowering_test DISCOVERY_MODE PRE_TEST)
endif()

# The program with calls that fail on demand (tests/faults). Its names are those of C: the linker leads them elsewhere.
if(TARGET sparkinfer)
  add_executable(faulty_sparkinfer src/cli/main.cpp tests/faults/faults.cpp)
  target_link_libraries(faulty_sparkinfer PRIVATE si_cli si_cpu -static-libstdc++ -static-libgcc)
  foreach(name open open64 mkostemp fopen fopen64 close mmap mmap64 munmap read pread pread64 write pwrite ftruncate fallocate
          rename fsync stat fstat pthread_create)
    target_link_options(faulty_sparkinfer PRIVATE -Wl,--wrap=${name})
  endforeach()
endif()
