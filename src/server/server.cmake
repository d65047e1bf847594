# TLS; everything but libc is inside the program, so the static libraries are taken.
set(OPENSSL_USE_STATIC_LIBS ON)
find_package(OpenSSL 3.0 REQUIRED)
target_link_libraries(si_server PRIVATE OpenSSL::SSL OpenSSL::Crypto ${CMAKE_DL_LIBS})
# Asio and Beast are headers; what they leave open is settled once for all their files.
target_compile_definitions(si_server PRIVATE BOOST_ASIO_NO_DEPRECATED BOOST_ASIO_DISABLE_BOOST_COROUTINE)

# The pages, as bytes in the program.
set(web_source ${CMAKE_BINARY_DIR}/generated/web_files.cpp)
file(GLOB web_files CONFIGURE_DEPENDS src/server/web/*)
add_custom_command(OUTPUT ${web_source}
  COMMAND ${CMAKE_COMMAND} -DFOLDER=${CMAKE_SOURCE_DIR}/src/server/web -DOUT=${web_source} -P ${CMAKE_SOURCE_DIR}/src/server/embed.cmake
  DEPENDS ${web_files} src/server/embed.cmake)
target_sources(si_server PRIVATE ${web_source})

# GCC 12 sees overlapping copies in std::string's operator+ where there are none (GCC bug 105651).
if(TARGET server_test AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(server_test PRIVATE -Wno-restrict)
endif()
