// The answer builder of dialects with one choice made of blocks (Messages, Responses): a choice's
// tokens through the parser into an AnswerWriter.
// Thread rule: one object, one thread at a time. Owner: its generation.
#pragma once

#include <memory>

#include "server/answer_builder.h"
#include "server/answer_writer.h"
#include "server/choice_tokens.h"
#include "server/response_common.h"

namespace deepinfer {

struct BlockAnswerOptions {
  ChoiceTokenSettings tokens;
  int64_t image_tokens = 0;
  ToolTurnSink on_tool_turn;        // may be empty
  bool limited_by_context = false;  // the token limit is the room left in the context
};

// `tokenizer` is borrowed and outlives the builder.
std::unique_ptr<AnswerBuilder> MakeBlockAnswer(const Tokenizer& tokenizer,
                                               BlockAnswerOptions options,
                                               std::unique_ptr<AnswerWriter> writer);

}  // namespace deepinfer
