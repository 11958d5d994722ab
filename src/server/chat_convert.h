// The steps from a ChatBody to a ChatRequest (stage "convert"). Internal to the request validator.
// Thread rule: pure functions. Each returns the error that ends the conversion, if any; the order
// of the steps is the order in which a request with several faults is refused.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/chat_body.h"
#include "server/chat_request.h"

namespace deepinfer {

using Refusal = std::optional<ApiError>;

// All steps in their order. `convert_turns` is the one that differs between the dialects: it fills
// the turns and images of a request whose form and thinking are set.
using TurnsStep = std::function<Refusal(ChatRequest*)>;
// check_behind_tools, if any, comes between the tools and the sampling.
using CheckStep = std::function<Refusal()>;
Refusal ConvertBody(const ChatBody& body, const ChatRequestOptions& options,
                    const TurnsStep& convert_turns, ChatRequest* request,
                    const CheckStep& check_behind_tools = nullptr);

// The texts with the separator between them.
std::string JoinTexts(const std::vector<std::string>& texts, std::string_view separator);

// An ApiError of stage "convert".
ApiError Refuse(std::string param, std::string message, std::string code = "invalid_value");

// Letters, digits, '_' and '-', at least one.
Refusal CheckToolName(const std::string& name, const std::string& path);
Refusal CheckToolNames(const ChatBody& body, const ChatRequestOptions& options);
// Turns and images. Precondition: request->conversation has its form and thinking set.
Refusal ConvertMessages(const ChatBody& body, const ChatRequestOptions& options,
                        ChatRequest* request);
// json_object needs the word "json" in a message.
Refusal CheckJsonWord(const ChatBody& body);

// Tools and tool choice, and what may not go with a continued message; sets the constraint on
// calls.
Refusal ConvertTools(const ChatBody& body, const ChatRequestOptions& options, ChatRequest* request);
// All or none of the tools in effect are strict; strict ones go with no response format.
Refusal ConvertStrictTools(const ChatBody& body, ChatRequest* request);

Refusal ConvertStop(const ChatBody& body, const ChatRequestOptions& options, ChatRequest* request);
Refusal ConvertStream(const ChatBody& body, ChatRequest* request);
// response_format and structured_outputs.
Refusal ConvertResponseFormat(const ChatBody& body, const ChatRequestOptions& options,
                              ChatRequest* request);
Refusal ConvertSampling(const ChatBody& body, const ChatRequestOptions& options,
                        ChatRequest* request);
Refusal ConvertLabels(const ChatBody& body, ChatRequest* request);

}  // namespace deepinfer
