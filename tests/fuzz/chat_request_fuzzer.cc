// Any bytes as a Chat Completions body: no crash; what is accepted renders, and its text parts show
// up in the prompt; what is refused has a client status and words.
// The first byte chooses the options, the rest is the body.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "base/check.h"
#include "base/utf8.h"
#include "server/chat_request.h"
#include "text/prompt_encoder.h"
#include "text/renderer.h"

namespace {

using namespace deepinfer;

ChatRequestOptions OptionsFrom(uint8_t flags) {
  ChatRequestOptions options;
  options.default_thinking = (flags & 1) != 0;
  options.default_form = (flags & 2) != 0 ? PromptForm::kV4 : PromptForm::kV41;
  options.forced_tools_in_thinking = (flags & 4) != 0;
  options.reject_duplicate_keys = (flags & 8) != 0;
  options.strict_fields = (flags & 16) != 0;
  options.test_hooks = (flags & 32) != 0;
  if ((flags & 64) != 0) options.sampling_policy = SamplingPolicy::kDeepSeek;
  if ((flags & 128) != 0) options.reasoning_passback = ReasoningPassback::kReject;
  return options;
}

void CheckAccepted(const ChatRequest& request) {
  const PromptText prompt = BuildPromptText(Render(request.conversation));
  DI_CHECK(IsValidUtf8(prompt.prompt));
  for (int32_t index : prompt.image_indexes) {
    DI_CHECK(index >= 0 && static_cast<size_t>(index) < request.images.size());
  }
  int64_t end = 0;
  for (const auto& [first, last] : prompt.special_ranges) {
    DI_CHECK(first >= end && last > first);
    end = last;
  }
  for (const Turn& turn : request.conversation.turns) {
    if (const auto* assistant = std::get_if<AssistantTurn>(&turn)) {
      DI_CHECK(prompt.prompt.find(assistant->text) != std::string::npos);
    }
  }
  DI_CHECK(request.num_choices >= 1);
  DI_CHECK(request.sampling.temperature >= 0 && request.sampling.temperature <= 2);
  DI_CHECK(request.sampling.top_p > 0 && request.sampling.top_p <= 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const ApiResult<ChatRequest> request = ParseChatRequest(body, OptionsFrom(data[0]));
  if (request) {
    CheckAccepted(*request);
  } else {
    DI_CHECK(request.error().status >= 400 && request.error().status < 500);
    DI_CHECK(!request.error().message.empty());
  }
  return 0;
}
