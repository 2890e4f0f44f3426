#include <levin/core/data/instruction_data.h>

#include <levin/core/base/error.h>
#include <levin/core/data/cache/example_cache.h>
#include <levin/core/data/documents/packed_rows.h>
#include <levin/core/data/image_index.h>
#include <levin/core/data/json_fields.h>
#include <levin/core/data/loader_fields.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <filesystem>
#include <utility>

namespace levin::data {

namespace {

namespace fs = std::filesystem;

constexpr const char* kNoTemplate = "none";

/// The folder that a tokenizer's file lies in, with what the model says of its tokens.
std::string folder_of(const std::string& tokenizer) {
  if (fs::is_directory(tokenizer)) return tokenizer;
  const std::string folder = fs::path(tokenizer).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string file_of(const std::string& tokenizer) {
  return fs::is_directory(tokenizer) ? tokenizer + "/tokenizer.json" : tokenizer;
}

}  // namespace

void InstructionDataOptions::describe(Schema<InstructionDataOptions>& schema) {
  using O = InstructionDataOptions;
  describe_json_fields(schema);
  schema.field("tokenizer", &O::tokenizer, "tokenizer.json of Hugging Face, or a folder with one");
  schema.field("chat_template", &O::chat_template,
               "template of chats (chatml, llama3, qwen2.5, ...); null: that of the tokenizer's folder; none: plain "
               "prompts and answers");
  schema.field("messages", &O::messages,
               "column of chats, lists of {role, content}; null: `messages` where it is there");
  schema.field("prompt", &O::prompt, "column of prompts; null: `prompt` where it is there");
  schema.field("answer", &O::answer, "column of answers; null: `answer` or `completion`");
  schema.field("system", &O::system, "column of system messages beside prompts; rows may lack it");
  schema.field("text", &O::text, "column of texts whose tokens are all learned; null: `text`, if there is one");
  schema.field("end", &O::end,
               "token after texts, and after answers without a template; null: eos_token of tokenizer_config.json; "
               "empty text: none");
  schema.field("loss_on", &O::loss_on, "answers that are learned: all, or the last of each chat",
               {{"all", LearnedAnswers::kAll}, {"last", LearnedAnswers::kLast}});
  schema.field("context", &O::context, "tokens in a row").at_least(1).at_most(int64_t{1} << 20);
  schema.field("pack", &O::pack, "pack several documents into a row; false: one row each, padded");
  schema.field("pack_window", &O::pack_window, "documents that are packed together").at_least(1);
  schema.field(
      "long_documents", &O::long_documents,
      "documents longer than the context are truncated, split into several, or refused",
      {{"truncate", LongDocuments::kTruncate}, {"split", LongDocuments::kSplit}, {"refuse", LongDocuments::kRefuse}});
  describe_cache_folder(schema);
  describe_loader_fields(schema);
}

InstructionData::InstructionData(const Options& options) : options_(options) {
  if (options_.files.empty() && options_.val_files.empty() && options_.test_files.empty())
    throw ConfigError("data.files is not set; hint: [data/*.jsonl]");
  if (options_.tokenizer.empty())
    throw ConfigError("data.tokenizer is not set; hint: the model's folder, or a tokenizer.json of Hugging Face");
  if (!options_.pack && options_.long_documents == LongDocuments::kSplit)
    throw ConfigError("data.long_documents is split, which needs pack: true; hint: long_documents: truncate");
}

std::string InstructionData::cache_folder() const { return options_.cache_folder.value_or(default_index_folder()); }

void InstructionData::open_tokenizer() {
  if (tokenizer_ == nullptr) tokenizer_ = std::make_shared<Tokenizer>(file_of(options_.tokenizer));
}

DocumentFormat InstructionData::format_of(const JsonRows& rows) const {
  const std::string folder = folder_of(options_.tokenizer);
  const ChatTokens tokens = special_tokens_of(folder);
  DocumentFormat format{.tokenizer = tokenizer_,
                        .columns = find_document_columns({.text = options_.text,
                                                          .prompt = options_.prompt,
                                                          .answer = options_.answer,
                                                          .system = options_.system,
                                                          .messages = options_.messages},
                                                         rows.row(0), rows.place(0)),
                        .learned = options_.loss_on};
  if (!format.columns.text && options_.chat_template != kNoTemplate)
    format.chat =
        options_.chat_template ? ChatTemplate::named(*options_.chat_template, tokens) : ChatTemplate::of_folder(folder);
  if (format.chat) return format;
  format.end = options_.end.value_or(tokens.eos);
  if (!options_.end && tokens.eos.empty())
    throw Error("data", fmt::format("{} has no tokenizer_config.json with an eos_token, which ends texts; hint: "
                                    "data.end, the token that does, or ''",
                                    folder));
  return format;
}

InstructionData::Examples InstructionData::examples_of(const std::shared_ptr<const JsonRows>& rows,
                                                       const RowSelection& selection) const {
  const DocumentFormat format = format_of(*rows);
  const auto documents = std::make_shared<const TokenDocuments>(rows, selection, format);
  if (!options_.pack) return std::make_shared<DocumentBatches>(documents, options_.context, options_.long_documents);
  // All that the rows follow from.
  const ChatMessage sample[] = {{"user", "1"}, {"assistant", "2"}};
  const auto name_of = [](const std::optional<std::string>& column) { return column ? "'" + *column + "'" : "-"; };
  const std::string key = fmt::format(
      "{}\n{}tokenizer {}{}columns {} {} {} {} {}\ntemplate {} {}\nend {}\nlearned {}\nrows {} to {} of {}\ncontext {} "
      "window {} long {}\n",
      "packed 2", rows->version(), whole_path(file_of(options_.tokenizer)),
      version_of_file(file_of(options_.tokenizer)), name_of(format.columns.text), name_of(format.columns.prompt),
      name_of(format.columns.answer), name_of(format.columns.system), name_of(format.columns.messages),
      format.chat ? format.chat->name() : kNoTemplate, format.chat ? format.chat->format(sample).text : "", format.end,
      static_cast<int>(format.learned), selection.row(0), selection.row(selection.size() - 1), selection.size(),
      options_.context, options_.pack_window, static_cast<int>(options_.long_documents));
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  const std::string folder = cache_folder();
  if (folder.empty())
    throw Error("data", "there is no folder for packed rows, since HOME is not set; hint: data.cache_folder");
  const std::string path = fmt::format("{}/packed-{:016x}{:016x}.rows", folder, hash.high64, hash.low64);
  if (!fs::exists(path)) {
    std::error_code error;
    fs::create_directories(folder, error);
    PackedRows::make(
        path, *documents,
        {.context = options_.context, .window = options_.pack_window, .long_documents = options_.long_documents});
  }
  return std::make_shared<PackedRows>(path, options_.context);
}

InstructionData::Examples InstructionData::all_of(const std::vector<std::string>& files) const {
  if (files.empty()) return nullptr;
  const auto rows = std::make_shared<const JsonRows>(files, cache_folder());
  return examples_of(rows, RowSelection(rows->size(), 0, RowSelection::Part::kAll));
}

void InstructionData::prepare_data() {
  // Its members are set by setup, on every rank; what is made here is kept in files.
  InstructionData made(options_);
  made.setup(Stage::kFit);
  made.setup(Stage::kTest);
}

void InstructionData::setup(Stage stage) {
  open_tokenizer();
  if (stage == Stage::kTest || stage == Stage::kPredict) {
    if (test_ == nullptr) test_ = all_of(options_.test_files);
    return;
  }
  if (train_ != nullptr || validation_ != nullptr) return;
  if (!options_.files.empty()) {
    const auto rows = std::make_shared<const JsonRows>(options_.files, cache_folder());
    const int64_t held_out = options_.val_files.empty() ? held_out_rows(rows->size(), options_.val_fraction) : 0;
    train_ = examples_of(rows, RowSelection(rows->size(), held_out, RowSelection::Part::kOthers));
    if (held_out > 0)
      validation_ = examples_of(rows, RowSelection(rows->size(), held_out, RowSelection::Part::kHeldOut));
  }
  if (!options_.val_files.empty()) validation_ = all_of(options_.val_files);
}

DataLoader InstructionData::train_dataloader() {
  return train_ == nullptr ? DataLoader() : unlisted_loader(train_, training_loader_options(options_));
}

DataLoader InstructionData::evaluation_loader(const Examples& examples) const {
  return examples == nullptr ? DataLoader() : DataLoader(examples, evaluation_loader_options(options_));
}

DataLoaders InstructionData::val_dataloader() { return evaluation_loader(validation_); }
DataLoaders InstructionData::test_dataloader() { return evaluation_loader(test_); }
DataLoaders InstructionData::predict_dataloader() { return evaluation_loader(test_); }

}  // namespace levin::data
