// Language models of Hugging Face's folders: trained on a text, sampled on the terminal, written back.
//
//   build/bin/language_model generate --model.path=FOLDER --prompt="Once upon a time"
//   build/bin/language_model fit --config examples/language_model/small.yaml

#include <levin/levin.h>

#include <filesystem>

namespace {

namespace fs = std::filesystem;

struct SaveOptions {
  std::string folder = "trained";

  static void describe(levin::Schema<SaveOptions>& schema) {
    schema.field("folder", &SaveOptions::folder, "what is written, for from_pretrained");
  }
};

/// The weights of --ckpt as a folder of Hugging Face, with the tokenizer beside them.
void save(const levin::CliRun& run, const SaveOptions& options) {
  const auto module = std::dynamic_pointer_cast<levin::CausalLm>(run.module);
  run.trainer->load_weights(module, run.ckpt);
  module->save_folder(options.folder);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"})
    if (const fs::path file = fs::path(module->folder()) / name; fs::exists(file))
      fs::copy_file(file, fs::path(options.folder) / name, fs::copy_options::overwrite_existing);
  std::cout << "wrote " << options.folder << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  levin::Cli cli;
  cli.modules.add<levin::CausalLm>("causal_lm", "a language model of a folder of Hugging Face");
  cli.data.add<levin::data::TokenText>("tokens", "a text file as tokens");
  cli.data.add<levin::data::InstructionData>("instruction", "chats, prompts and texts of JSON lines");
  cli.data.add<levin::data::BlendedData>("blend", "several of them by weight");
  levin::add_generate_command(cli);
  cli.add_command<SaveOptions>("save", "writes the weights of --ckpt as a folder for from_pretrained", save,
                               /*needs_data=*/false);
  return cli.run(argc, argv);
}
