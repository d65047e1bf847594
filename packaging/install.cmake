# What `cmake --install` puts where: the program, its man page and completions, the library with its header, pkg-config and CMake files, papers.
# Everything is found relative to itself, so the tree may be moved.
include(CMakePackageConfigHelpers)
set(install_lib lib)
install(TARGETS sparkinfer RUNTIME DESTINATION bin)
install(TARGETS libsparkinfer EXPORT sparkinfer-targets LIBRARY DESTINATION ${install_lib})
set_target_properties(libsparkinfer PROPERTIES EXPORT_NAME sparkinfer)
install(FILES include/sparkinfer.h DESTINATION include)
install(EXPORT sparkinfer-targets FILE sparkinfer-config.cmake NAMESPACE sparkinfer:: DESTINATION ${install_lib}/cmake/sparkinfer)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/sparkinfer-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/generated/sparkinfer-config-version.cmake DESTINATION ${install_lib}/cmake/sparkinfer)
configure_file(packaging/sparkinfer.pc.in ${CMAKE_BINARY_DIR}/generated/sparkinfer.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/generated/sparkinfer.pc DESTINATION ${install_lib}/pkgconfig)
install(FILES LICENSE README.md CHANGELOG.md docs/cli.md docs/embedding.md docs/serving.md docs/formats.md DESTINATION share/doc/sparkinfer)

# Made while building, by whoever has the crates: `sudo make install` may have another home.
set(notices ${CMAKE_BINARY_DIR}/generated/THIRD-PARTY-NOTICES)
add_custom_command(OUTPUT ${notices} COMMAND python3 packaging/notices.py ${notices} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
  DEPENDS packaging/notices.py rust/text/Cargo.lock ${text_lib} VERBATIM)
add_custom_target(installable ALL DEPENDS ${notices})
add_dependencies(installable sparkinfer libsparkinfer)
install(FILES ${notices} DESTINATION share/doc/sparkinfer)

# Written by the program that was installed, so that they are its own.
function(install_output path)
  string(JOIN " " words ${ARGN})
  install(CODE "
    set(path \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${path}\")
    message(STATUS \"Installing: \${path}\")
    get_filename_component(folder \"\${path}\" DIRECTORY)
    file(MAKE_DIRECTORY \"\${folder}\")
    execute_process(COMMAND ${words} OUTPUT_FILE \"\${path}\" COMMAND_ERROR_IS_FATAL ANY)")
endfunction()
install_output(share/man/man1/sparkinfer.1 "\"$<TARGET_FILE:sparkinfer>\"" manual man)
install_output(share/bash-completion/completions/sparkinfer "\"$<TARGET_FILE:sparkinfer>\"" completion bash)
install_output(share/zsh/site-functions/_sparkinfer "\"$<TARGET_FILE:sparkinfer>\"" completion zsh)
install_output(share/fish/vendor_completions.d/sparkinfer.fish "\"$<TARGET_FILE:sparkinfer>\"" completion fish)
