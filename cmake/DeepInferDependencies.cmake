# Every third-party package, found once. scripts/setup installs them; NOTICE lists them.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(tl-expected REQUIRED)
find_package(OpenSSL 3 REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(CLI11 REQUIRED)
find_package(tomlplusplus 3 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
find_package(prometheus-cpp REQUIRED COMPONENTS core)

if(DEEPINFER_TESTS)
  find_package(GTest REQUIRED)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
  find_library(RAPIDCHECK_LIBRARY rapidcheck REQUIRED)
endif()
