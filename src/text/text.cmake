# The Rust crate rust/text, built by cargo outside of its own folder so that nothing is written in the tree, and the C++
# library si_text over it. Cargo decides by itself what is stale; the static library changes only when it was.
find_program(CARGO cargo HINTS $ENV{HOME}/.cargo/bin REQUIRED)
set(SPARKINFER_TEXT_FOLDER ${CMAKE_BINARY_DIR}/rust CACHE PATH "where cargo builds rust/text; the same for several builds spares minutes")
set(text_lib ${SPARKINFER_TEXT_FOLDER}/release/libsparkinfer_text.a)
set(text_command ${CARGO})
if(SPARKINFER_FUZZ)
  # The crate reports to the fuzzer which branches it takes. With a target named, what runs while building does not.
  set(text_flags "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters")
  string(APPEND text_flags " -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=16")
  set(text_triple x86_64-unknown-linux-gnu)
  set(text_lib ${SPARKINFER_TEXT_FOLDER}/${text_triple}/release/libsparkinfer_text.a)
  set(text_command ${CMAKE_COMMAND} -E env RUSTFLAGS=${text_flags} CARGO_BUILD_TARGET=${text_triple} ${CARGO})
endif()
file(GLOB text_rust_sources CONFIGURE_DEPENDS rust/text/src/*.rs)
add_custom_command(
  OUTPUT ${text_lib}
  COMMAND ${text_command} build --quiet --release --locked --manifest-path ${CMAKE_SOURCE_DIR}/rust/text/Cargo.toml
          --target-dir ${SPARKINFER_TEXT_FOLDER}
  DEPENDS ${text_rust_sources} ${CMAKE_SOURCE_DIR}/rust/text/Cargo.toml ${CMAKE_SOURCE_DIR}/rust/text/Cargo.lock
  COMMENT "cargo build rust/text"
  USES_TERMINAL VERBATIM)
add_custom_target(text_rust DEPENDS ${text_lib})
add_library(sparkinfer_text_rust STATIC IMPORTED GLOBAL)
set_target_properties(sparkinfer_text_rust PROPERTIES IMPORTED_LOCATION ${text_lib})
add_dependencies(sparkinfer_text_rust text_rust)

sparkinfer_folder(text si_core)
target_link_libraries(si_text PRIVATE sparkinfer_text_rust ${CMAKE_DL_LIBS} m)
add_dependencies(si_text text_rust)

if(SPARKINFER_TESTS)
  add_executable(text_probe tests/golden/text/text_probe.cpp)
  target_link_libraries(text_probe PRIVATE si_text si_load)
  add_executable(grammar_probe tests/golden/text/grammar_probe.cpp)
  target_link_libraries(grammar_probe PRIVATE si_text si_load)
endif()
