#include "text/special_tokens.h"

#include <fmt/format.h>

#include "text/tokenizer.h"

namespace deepinfer {

Result<SpecialTokens> SpecialTokens::Resolve(const Tokenizer& tokenizer) {
  struct Required {
    std::string_view content;
    int32_t SpecialTokens::*field;
  };
  constexpr Required kRequired[] = {
      {kBosString, &SpecialTokens::bos},
      {kEosString, &SpecialTokens::eos},
      {kPadString, &SpecialTokens::pad},
      {kSystemString, &SpecialTokens::system},
      {kUserString, &SpecialTokens::user},
      {kAssistantString, &SpecialTokens::assistant},
      {kThinkBeginString, &SpecialTokens::think_begin},
      {kThinkEndString, &SpecialTokens::think_end},
      {kDsmlString, &SpecialTokens::dsml},
      {kLatestReminderString, &SpecialTokens::latest_reminder},
  };
  SpecialTokens tokens;
  for (const Required& required : kRequired) {
    const std::optional<int32_t> id = tokenizer.FindAdded(required.content);
    if (!id) {
      return NotFound(
          fmt::format("the tokenizer has no added token {}: it cannot serve the chat "
                      "format of this model",
                      required.content));
    }
    tokens.*required.field = *id;
  }
  tokens.image = tokenizer.FindAdded(kImageString);
  tokens.fim_hole = tokenizer.FindAdded(kFimHoleString);
  tokens.fim_begin = tokenizer.FindAdded(kFimBeginString);
  tokens.fim_end = tokenizer.FindAdded(kFimEndString);
  tokens.action = tokenizer.FindAdded(kActionString);
  tokens.query = tokenizer.FindAdded(kQueryString);
  tokens.authority = tokenizer.FindAdded(kAuthorityString);
  tokens.domain = tokenizer.FindAdded(kDomainString);
  tokens.title = tokenizer.FindAdded(kTitleString);
  tokens.read_url = tokenizer.FindAdded(kReadUrlString);
  return tokens;
}

}  // namespace deepinfer
