#include "cli/compatibility_flags.h"

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "base/log.h"
#include "cli/speculation_flags.h"
#include "server/server_options.h"

namespace deepinfer {
namespace json = boost::json;

namespace {

// The members of a flag whose value is a JSON object.
Result<json::object> ObjectOf(const char* flag, const std::string& text) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) {
    return InvalidRequest(std::string(flag) + " must be a JSON object");
  }
  return value.get_object();
}

Status Refuse(const char* flag, json::string_view member, const char* what) {
  return InvalidRequest(std::string(flag) + ": " + std::string(member) + " " + what);
}

}  // namespace

void CompatibilityFlags::Register(CLI::App* c) {
  const auto ignore = [&](const std::string& names, bool takes_value) {
    CLI::Option* option = takes_value
                              ? c->add_option(names, ignored_value_)
                              : static_cast<CLI::Option*>(c->add_flag(names, ignored_flag_));
    ignored_.push_back(option->group(""));
  };
  ignore("--reasoning-parser", true);
  ignore("--tool-call-parser", true);
  ignore("--tokenizer-mode", true);
  ignore("--enable-auto-tool-choice", false);
  ignore("--enable-prompt-tokens-details", false);
  ignore("--enable-cache-report", false);
  ignore("--trust-remote-code", false);
  ignore("--enable-metrics", false);
  ignore("--enable-log-requests", false);
  // Shares of an accelerator's memory.
  ignore("--gpu-memory-utilization", true);
  ignore("--mem-fraction-static", true);
  singles_ = {
      {"--tp,--tensor-parallel-size", 1,
       "this model is spread by --data-parallel-size and --expert-parallel-size"},
      {"--dp,--data-parallel-size", 1,
       "replicas are processes of their own: deepinfer cluster up --workers N"},
      {"--ep,--expert-parallel-size", 1, "one process holds all experts"},
      {"--cp,--context-parallel-size", 1, "one process holds the whole context"},
      {"--engram-parallel-size", 1, "one process holds the whole table"},
  };
  for (Single& single : singles_) c->add_option(single.name, single.value)->group("");
  c->add_option("--eplb,--enable-eplb", eplb_)->expected(0, 1)->default_str("on")->group("");
  c->add_option("--vision", vision_)->check(CLI::IsMember({"on", "off"}))->group("");
  c->add_flag("--allow-remote-images", remote_images_)->group("");
  c->add_option("--default-chat-template-kwargs", template_arguments_)->group("");
  c->add_option("--speculative-config", speculative_config_)->group("");
}

Status CompatibilityFlags::Apply(SpeculationFlags* speculation, ServerOptions* server) const {
  for (const Single& single : singles_) {
    if (single.value == 1) continue;
    return InvalidRequest(single.name.substr(single.name.rfind(',') + 1) +
                          " can only be 1: " + single.instead);
  }
  if (eplb_ != "off") {
    return InvalidRequest("--eplb: experts of one process need no balancing");
  }
  if (vision_ != "off" || remote_images_) {
    return InvalidRequest("--vision and --allow-remote-images: this build takes no images");
  }
  for (const CLI::Option* option : ignored_) {
    if (option->count() > 0) {
      Log(LogLevel::kWarning, "flag.ignored", {{"flag", "--" + option->get_lnames().front()}});
    }
  }
  DI_RETURN_IF_ERROR(ApplyTemplateArguments(server));
  return ApplySpeculation(speculation);
}

Status CompatibilityFlags::ApplyTemplateArguments(ServerOptions* server) const {
  constexpr const char* kFlag = "--default-chat-template-kwargs";
  if (template_arguments_.empty()) return OkStatus();
  DI_ASSIGN_OR_RETURN(const json::object members, ObjectOf(kFlag, template_arguments_));
  for (const auto& [key, value] : members) {
    if (key == "thinking" || key == "enable_thinking") {
      if (!value.is_bool()) return Refuse(kFlag, key, "must be a boolean");
      server->chat.default_thinking = value.get_bool();
    } else if (key == "reasoning_effort") {
      return Refuse(kFlag, key, "is --default-effort here");
    } else {
      return Refuse(kFlag, key, "is not known; thinking and enable_thinking are");
    }
  }
  return OkStatus();
}

Status CompatibilityFlags::ApplySpeculation(SpeculationFlags* speculation) const {
  constexpr const char* kFlag = "--speculative-config";
  if (speculative_config_.empty()) return OkStatus();
  DI_ASSIGN_OR_RETURN(const json::object members, ObjectOf(kFlag, speculative_config_));
  for (const auto& [key, value] : members) {
    if (key == "method") {
      // Never rewritten: another method would draft other tokens.
      if (!value.is_string() || value.get_string() != "dspark") {
        return Refuse(kFlag, key, "can only be \"dspark\"");
      }
    } else if (key == "num_speculative_tokens") {
      if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > 5) {
        return Refuse(kFlag, key, "must be 0 to 5");
      }
      speculation->SetDraftTokens(static_cast<int32_t>(value.get_int64()));
    } else {
      return Refuse(kFlag, key, "is not known; method and num_speculative_tokens are");
    }
  }
  return OkStatus();
}

}  // namespace deepinfer
