#include "cli/flag_sources.h"

#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>

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

// Tables that may group keys; one that names a part of the flags is their prefix as well:
// kv.space_mb is --kv-space-mb.
const std::vector<std::string> kTables = {"engine", "server", "kv"};

struct FileValue {
  std::string source;  // file and key, for messages
  const toml::node* node = nullptr;
};

class FileValues {
 public:
  // flags: those that the file may name.
  Status Load(const std::string& path, const std::vector<std::string>& flags) {
    path_ = path;
    try {
      document_ = toml::parse_file(path);
    } catch (const toml::parse_error& e) {
      std::string message = path + ": " + std::string(e.description());
      // A file that cannot be read has no lines.
      if (e.source().begin) message += " at line " + std::to_string(e.source().begin.line);
      return InvalidRequest(message);
    }
    for (const auto& [key, node] : document_) {
      const std::string name(key.str());
      const toml::table* table = node.as_table();
      if (table == nullptr) {
        DI_RETURN_IF_ERROR(Add("", name, node, flags));
      } else if (std::ranges::find(kTables, name) == kTables.end()) {
        return Unknown("table", name, Nearest(name, kTables));
      } else {
        for (const auto& [inner, value] : *table) {
          DI_RETURN_IF_ERROR(Add(name, std::string(inner.str()), value, flags));
        }
      }
    }
    return OkStatus();
  }

  const FileValue* Find(const std::string& flag) const {
    const auto it = values_.find(flag);
    return it == values_.end() ? nullptr : &it->second;
  }

 private:
  Status Unknown(std::string_view what, const std::string& name, const std::string& nearest) const {
    std::string message = path_ + ": unknown " + std::string(what) + " '" + name + "'";
    if (!nearest.empty()) message += ", did you mean '" + nearest + "'?";
    return InvalidRequest(message);
  }

  Status Add(const std::string& table, const std::string& key, const toml::node& node,
             const std::vector<std::string>& flags) {
    std::string dashed = key;
    std::ranges::replace(dashed, '_', '-');
    const std::string name = table.empty() ? key : table + "." + key;
    std::string flag = table + "-" + dashed;
    if (std::ranges::find(flags, flag) == flags.end()) flag = dashed;
    if (std::ranges::find(flags, flag) == flags.end()) {
      return Unknown("key", name, Nearest(dashed, flags));
    }
    const std::string source = path_ + ": key '" + name + "'";
    if (!values_.emplace(flag, FileValue{source, &node}).second) {
      return InvalidRequest(source + " gives --" + flag + " a second time");
    }
    return OkStatus();
  }

  std::string path_;
  toml::table document_;
  std::map<std::string, FileValue> values_;  // by flag
};

}  // namespace

Result<FlagOrigins> FillFromEnvironmentAndFile(CLI::App* command) {
  std::map<std::string, CLI::Option*> options;
  std::vector<std::string> flags;
  for (CLI::Option* option : command->get_options()) {
    const std::string flag = FlagName(*option);
    if (flag.empty() || flag == "help" || flag == "config") continue;
    options[flag] = option;
    flags.push_back(flag);
  }
  FileValues file;
  if (CLI::Option* config = command->get_option_no_throw("--config")) {
    if (config->count() == 0) {
      if (const char* value = std::getenv("DEEPINFER_CONFIG")) {
        DI_RETURN_IF_ERROR(SetOption(config, {value}, "DEEPINFER_CONFIG"));
      }
    }
    if (config->count() > 0) DI_RETURN_IF_ERROR(file.Load(config->as<std::string>(), flags));
  }
  FlagOrigins origins;
  for (const std::string& flag : flags) {
    CLI::Option* option = options[flag];
    const FileValue* in_file = file.Find(flag);
    const std::string environment = EnvironmentName(flag);
    if (option->count() > 0) {
      origins[flag] = "flag";
    } else if (const char* value = std::getenv(environment.c_str())) {
      DI_RETURN_IF_ERROR(SetOption(option, {value}, environment));
      origins[flag] = "environment";
    } else if (in_file != nullptr) {
      const std::vector<std::string> texts = Texts(*in_file->node);
      if (texts.empty()) {
        return InvalidRequest(in_file->source + " must be a value or a list of values");
      }
      DI_RETURN_IF_ERROR(SetOption(option, texts, in_file->source));
      origins[flag] = "file";
    } else {
      origins[flag] = "default";
    }
  }
  return origins;
}

}  // namespace deepinfer
