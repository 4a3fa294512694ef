#include "gpu/shader_source.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

namespace pomona {

namespace {

struct Shaders {
  std::mutex mutex;
  std::atomic<int> generation = 0;
  std::string folder;
  std::map<std::string, std::shared_ptr<const ShaderSource>> sources; // by file
};

Shaders& shaders() {
  static Shaders shared;
  return shared;
}

std::string read(const std::string& folder, const std::string& file) {
  std::string path = folder + "/" + file;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(
      std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!stream) {
    throw std::runtime_error("cannot read the shader " + path);
  }
  std::string text;
  char buffer[4096];
  while (size_t size = std::fread(buffer, 1, sizeof buffer, stream.get())) {
    text.append(buffer, size);
  }
  return text;
}

// A header in quotes: beside the file that includes it, or else by its path in `folder`.
std::string find_header(
    const std::string& folder, const std::string& file, const std::string& header) {
  std::string beside = file.substr(0, file.rfind('/') + 1) + header;
  bool is_there = std::filesystem::exists(folder + "/" + beside);
  return is_there ? std::filesystem::path(beside).lexically_normal().string() : header;
}

// GPUs' compilers are given a text that has no folder, so headers in quotes are put in their place.
void append(
    const std::string& folder,
    const std::string& file,
    std::set<std::string>& included,
    std::string& text) {
  if (!included.insert(file).second) {
    return;
  }
  const std::string include = "#include \"";
  std::string source = read(folder, file);
  text += "#line 1 \"" + file + "\"\n";
  int number = 0;
  for (size_t start = 0; start < source.size();) {
    size_t end = std::min(source.find('\n', start), source.size());
    std::string line = source.substr(start, end - start);
    start = end + 1;
    number++;
    if (line.compare(0, include.size(), include) == 0) {
      std::string header = line.substr(include.size(), line.rfind('"') - include.size());
      append(folder, find_header(folder, file, header), included, text);
      text += "#line " + std::to_string(number + 1) + " \"" + file + "\"\n";
    } else {
      text += line == "#pragma once" ? "\n" : line + "\n";
    }
  }
}

} // namespace

void set_shader_folder(const std::string& folder) {
  std::lock_guard lock(shaders().mutex);
  shaders().folder = folder;
  shaders().sources.clear();
  shaders().generation++;
}

int shader_generation() {
  return shaders().generation;
}

std::shared_ptr<const ShaderSource> shader_source(const std::string& file) {
  std::lock_guard lock(shaders().mutex);
  if (shaders().folder.empty()) {
    throw std::runtime_error("set_shader_folder has not been called");
  }
  auto& source = shaders().sources[file];
  if (!source) {
    std::set<std::string> included;
    std::string text;
    append(shaders().folder, file, included, text);
    auto hash = std::to_string(std::hash<std::string>{}(text));
    source = std::make_shared<ShaderSource>(ShaderSource{std::move(text), std::move(hash)});
  }
  return source;
}

} // namespace pomona
