#include "cli/flag_sources.h"

#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "cli/suggest.h"

namespace deepinfer {

namespace {

std::string FlagName(const CLI::Option& option) {
  return option.get_lnames().empty() ? "" : option.get_lnames().front();
}

std::string EnvironmentName(const std::string& flag) {
  std::string name = "DEEPINFER_" + flag;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

// Text of a scalar, or of the items of a list; empty list for anything else.
std::vector<std::string> Texts(const toml::node& node) {
  std::vector<std::string> out;
  const auto add = [&out](const toml::node& n) {
    if (const auto* s = n.as_string()) {
      out.push_back(s->get());
    } else if (const auto* i = n.as_integer()) {
      out.push_back(std::to_string(i->get()));
    } else if (const auto* b = n.as_boolean()) {
      out.push_back(b->get() ? "true" : "false");
    } else if (const auto* f = n.as_floating_point()) {
      out.push_back(std::to_string(f->get()));
    }
  };
  if (const auto* array = node.as_array()) {
    for (const toml::node& item : *array) add(item);
  } else {
    add(node);
  }
  return out;
}

Status SetOption(CLI::Option* option, const std::vector<std::string>& values,
                 const std::string& source) {
  try {
    for (const std::string& v : values) option->add_result(v);
    option->run_callback();
  } catch (const CLI::Error& e) {
    return InvalidRequest(source + ": " + e.what());
  }
  return OkStatus();
}

class FileKeys {
 public:
  Status Load(const std::string& path) {
    path_ = path;
    try {
      table_ = toml::parse_file(path);
    } catch (const toml::parse_error& e) {
      std::string message = path + ": " + std::string(e.description());
      // A file that cannot be read has no lines.
      if (e.source().begin) message += " at line " + std::to_string(e.source().begin.line);
      return InvalidRequest(message);
    }
    return OkStatus();
  }

  const toml::node* Find(const std::string& flag) {
    std::string underscored = flag;
    std::replace(underscored.begin(), underscored.end(), '-', '_');
    for (const std::string& key : {flag, underscored}) {
      if (const toml::node* node = table_.get(key)) {
        used_.push_back(key);
        return node;
      }
    }
    return nullptr;
  }

  Status CheckUnused(const std::vector<std::string>& flags) const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(used_.begin(), used_.end(), name) != used_.end()) continue;
      std::string message = path_ + ": unknown key '" + name + "'";
      std::string dashed = name;
      std::replace(dashed.begin(), dashed.end(), '_', '-');
      const std::string nearest = Nearest(dashed, flags);
      if (!nearest.empty()) message += ", did you mean '" + nearest + "'?";
      return InvalidRequest(message);
    }
    return OkStatus();
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  toml::table table_;
  std::vector<std::string> used_;
};

}  // namespace

Result<FlagOrigins> FillFromEnvironmentAndFile(CLI::App* command) {
  FileKeys file;
  if (CLI::Option* config = command->get_option_no_throw("--config")) {
    if (config->count() == 0) {
      if (const char* value = std::getenv("DEEPINFER_CONFIG")) {
        DI_RETURN_IF_ERROR(SetOption(config, {value}, "DEEPINFER_CONFIG"));
      }
    }
    if (config->count() > 0) DI_RETURN_IF_ERROR(file.Load(config->as<std::string>()));
  }
  FlagOrigins origins;
  std::vector<std::string> flags;
  for (CLI::Option* option : command->get_options()) {
    const std::string flag = FlagName(*option);
    if (flag.empty() || flag == "help" || flag == "config") continue;
    flags.push_back(flag);
    const toml::node* node = file.Find(flag);
    const std::string environment = EnvironmentName(flag);
    if (option->count() > 0) {
      origins[flag] = "flag";
    } else if (const char* value = std::getenv(environment.c_str())) {
      DI_RETURN_IF_ERROR(SetOption(option, {value}, environment));
      origins[flag] = "environment";
    } else if (node != nullptr) {
      const std::string source = file.path() + ": key '" + flag + "'";
      const std::vector<std::string> texts = Texts(*node);
      if (texts.empty()) return InvalidRequest(source + " must be a value or a list of values");
      DI_RETURN_IF_ERROR(SetOption(option, texts, source));
      origins[flag] = "file";
    } else {
      origins[flag] = "default";
    }
  }
  DI_RETURN_IF_ERROR(file.CheckUnused(flags));
  return origins;
}

}  // namespace deepinfer
