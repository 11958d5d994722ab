#include "server/logprobs.h"

#include <cmath>

#include "base/json_writer.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

void AppendByteEscape(unsigned char byte, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  *out += "\\x";
  *out += kHex[byte >> 4];
  *out += kHex[byte & 15];
}

void WriteToken(std::string_view bytes, float logprob, int64_t* num_nan, JsonWriter* json) {
  json->Field("token", LogprobTokenText(bytes));
  json->Key("logprob").Float(PrintableLogprob(logprob, num_nan));
  json->Key("bytes").BeginArray();
  for (char c : bytes) json->Int(static_cast<unsigned char>(c));
  json->EndArray();
}

}  // namespace

float PrintableLogprob(float logprob, int64_t* num_nan) {
  if (std::isnan(logprob)) {
    ++*num_nan;
    return kLogprobFloor;
  }
  return std::isinf(logprob) ? kLogprobFloor : logprob;
}

std::string LogprobTokenText(std::string_view bytes) {
  std::string text;
  size_t offset = 0;
  while (offset < bytes.size()) {
    const Utf8Char c = DecodeUtf8(bytes, offset);
    const std::string_view raw = bytes.substr(offset, c.size_bytes);
    offset += c.size_bytes;
    if (c.status == Utf8Status::kValid) {
      text += raw;
      continue;
    }
    for (char byte : raw) AppendByteEscape(static_cast<unsigned char>(byte), &text);
  }
  return text;
}

std::string CompletionsTokenText(std::string_view bytes) {
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (char byte : bytes) AppendByteEscape(static_cast<unsigned char>(byte), &text);
  return text;
}

void WriteChatLogprob(const Tokenizer& tokenizer, int32_t id, const TokenLogprobs& logprobs,
                      int64_t* num_nan, JsonWriter* json) {
  json->BeginObject();
  WriteToken(tokenizer.TokenBytes(id), logprobs.logprob, num_nan, json);
  json->Key("top_logprobs").BeginArray();
  for (const auto& [top_id, top_logprob] : logprobs.top) {
    json->BeginObject();
    WriteToken(tokenizer.TokenBytes(top_id), top_logprob, num_nan, json);
    json->EndObject();
  }
  json->EndArray();
  json->EndObject();
}

}  // namespace deepinfer
