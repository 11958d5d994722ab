// Reads one byte too far on the input "overrun": shows that a fuzz run reports what it must.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view trigger = "overrun";
  if (std::string_view(reinterpret_cast<const char*>(data), size) != trigger) return 0;
  const auto copy = std::make_unique<char[]>(size);
  std::memcpy(copy.get(), data, size);
  const volatile char* past_end = copy.get() + size;
  return *past_end == 'x' ? 0 : 0;
}
