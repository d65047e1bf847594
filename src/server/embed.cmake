# cmake -DFOLDER=src/server/web -DOUT=web_files.cpp -P embed.cmake: every file of the folder as bytes in a C++ source.
file(GLOB files RELATIVE ${FOLDER} ${FOLDER}/*)
list(SORT files)
set(arrays "")
set(rows "")
set(index 0)
foreach(name ${files})
  if(NOT name MATCHES "\\.(html|js|mjs|css|svg|png|ico|woff2|json|txt)$" OR name MATCHES "(test|spec)\\.")
    continue()
  endif()
  file(READ ${FOLDER}/${name} hex HEX)
  file(SHA256 ${FOLDER}/${name} hash)
  string(SUBSTRING ${hash} 0 24 hash)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
  string(APPEND arrays "const unsigned char kFile${index}[] = {\n${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", \"${hash}\", std::string_view(reinterpret_cast<const char*>(kFile${index}), sizeof kFile${index} - 1)},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUT}.new "// Made by src/server/embed.cmake.
#include \"server/web_files.h\"

#include <array>

namespace sparkinfer {
namespace {
${arrays}const std::array<WebFile, ${index}> kFiles = {{
${rows}}};
}  // namespace
std::span<const WebFile> web_files() { return kFiles; }
}  // namespace sparkinfer
")
file(COPY_FILE ${OUT}.new ${OUT} ONLY_IF_DIFFERENT)
file(REMOVE ${OUT}.new)
