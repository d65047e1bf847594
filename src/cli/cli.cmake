# What the C interface shares with the commands: what a model is, and the machine. A library without their dependencies.
get_target_property(cli_sources si_cli SOURCES)
set(facts_sources ${cli_sources})
list(FILTER facts_sources INCLUDE REGEX "/(model_facts|machine)\\.cpp$")
list(REMOVE_ITEM cli_sources ${facts_sources})
set_target_properties(si_cli PROPERTIES SOURCES "${cli_sources}")
add_library(si_facts STATIC ${facts_sources})
target_link_libraries(si_facts PUBLIC si_engine si_model si_load si_core)
target_link_libraries(si_cli PUBLIC si_facts)

# The version, and the commit: told when the build is made and asked for again at every build, written where it changed.
set(commit_command ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -DOUT=${CMAKE_BINARY_DIR}/generated/commit.h
    -P ${CMAKE_SOURCE_DIR}/tools/commit.cmake)
execute_process(COMMAND ${commit_command})
add_custom_target(sparkinfer_commit COMMAND ${commit_command} BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/commit.h)
add_dependencies(si_cli sparkinfer_commit)
set(built_targets "")
if(SPARKINFER_CUDA)
  string(REPLACE ";" "," built_targets "${SPARKINFER_CUDA_TARGETS}")
endif()
set_source_files_properties(src/cli/version.cpp PROPERTIES
  COMPILE_DEFINITIONS "SPARKINFER_VERSION=\"${PROJECT_VERSION}\";SPARKINFER_BUILD_TYPE=\"${CMAKE_BUILD_TYPE}\";SPARKINFER_SANITIZERS=\"${SPARKINFER_SANITIZE}\";SPARKINFER_BUILT_TARGETS=\"${built_targets}\"" INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR})
# pull speaks TLS, with the libraries that the server brings.
target_link_libraries(si_cli PRIVATE OpenSSL::SSL OpenSSL::Crypto ${CMAKE_DL_LIBS})
