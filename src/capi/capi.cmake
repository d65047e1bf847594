# libsparkinfer: the engine behind include/sparkinfer.h. As in the program, everything but libc is inside; only the functions of the header are
# seen from outside.
file(GLOB capi_sources CONFIGURE_DEPENDS src/capi/*.cpp)
add_library(libsparkinfer SHARED ${capi_sources})
set_target_properties(libsparkinfer PROPERTIES OUTPUT_NAME sparkinfer VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/capi/exports.map)
target_include_directories(libsparkinfer PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_compile_definitions(libsparkinfer PRIVATE SPARKINFER_VERSION="${PROJECT_VERSION}")
target_link_libraries(libsparkinfer PRIVATE si_facts si_text si_engine si_cpu -static-libstdc++ -static-libgcc)
target_link_options(libsparkinfer PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/capi/exports.map)
if(SPARKINFER_CUDA)
  target_link_libraries(libsparkinfer PRIVATE si_cuda)
  target_compile_definitions(libsparkinfer PRIVATE SPARKINFER_CUDA)
endif()

if(SPARKINFER_TESTS)
  # The interface as a C program sees it.
  add_executable(capi_test tests/capi/capi_test.c)
  set_target_properties(capi_test PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  target_compile_options(capi_test PRIVATE -Wall -Wextra -Wpedantic -Werror)
  target_link_libraries(capi_test PRIVATE libsparkinfer Threads::Threads)
  if(SPARKINFER_SANITIZE)
    set_target_properties(capi_test PROPERTIES LINKER_LANGUAGE CXX)  # the sanitizers' part for C++ comes with the program
  endif()
endif()
