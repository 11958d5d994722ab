# Writes the files NAMES of FOLDER as constants to OUTPUT, which defines WebAssets()
# (src/server/web_assets.h).
set(tables "")
set(entries "")
foreach(name ${NAMES})
  file(READ ${FOLDER}/${name} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  string(MAKE_C_IDENTIFIER ${name} id)
  string(APPEND tables "constexpr char k_${id}[] = {${bytes}};\n")
  string(APPEND entries "    {\"${name}\", {k_${id}, sizeof k_${id}}},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"server/web_assets.h\"

namespace deepinfer {
namespace {

${tables}
constexpr WebAsset kAssets[] = {
${entries}};

}  // namespace

std::span<const WebAsset> WebAssets() { return kAssets; }

}  // namespace deepinfer
")
