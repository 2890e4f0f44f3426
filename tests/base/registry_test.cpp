#include <levin/core/base/registry.h>

#include "parse_yaml.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace levin {
namespace {

class Animal : public Configurable {
 public:
  virtual std::string sound() const = 0;
};

struct DogOptions {
  int64_t barks = 1;
  static void describe(Schema<DogOptions>& schema) {
    schema.field("barks", &DogOptions::barks, "how often it barks").at_least(1);
  }
};

class Dog : public Animal {
 public:
  using Options = DogOptions;
  explicit Dog(const Options& options) : options_(options) {}
  std::string sound() const override {
    std::string sound;
    for (int64_t i = 0; i < options_.barks; ++i) sound += "woof";
    return sound;
  }

 private:
  Options options_;
};

class Cat : public Animal {
 public:
  std::string sound() const override { return "meow"; }
};

class LoudCat : public Cat {
 public:
  std::string sound() const override { return "MEOW"; }
};

Registry<Animal> animals() {
  Registry<Animal> registry("animal");
  registry.add<Dog>("dog", "barks");
  registry.add<Cat>("cat");
  return registry;
}

TEST(RegistryTest, MakesByName) {
  const auto registry = animals();
  EXPECT_EQ(registry.make("dog", parse("{barks: 2}"), "pet")->sound(), "woofwoof");
  EXPECT_EQ(registry.make("dog", Config(), "pet")->sound(), "woof");
  EXPECT_EQ(registry.make("cat", Config(), "pet")->sound(), "meow");
}

TEST(RegistryTest, UnknownNameIsRefusedWithTheNearestOne) {
  try {
    animals().make("dgo", Config(), "pet", {.source = "test.yaml", .line = 3, .column = 7});
    FAIL() << "no exception";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[config] test.yaml:3:7: unknown animal 'dgo'; did you mean 'dog'?; valid: dog, cat");
  }
}

TEST(RegistryTest, OptionsAreChecked) {
  const auto registry = animals();
  EXPECT_THROW(registry.make("dog", parse("{barks: 0}"), "pet"), ConfigError);
  EXPECT_THROW(registry.make("dog", parse("{bark: 1}"), "pet"), ConfigError);
  EXPECT_THROW(registry.make("cat", parse("{barks: 1}"), "pet"), ConfigError);
  EXPECT_THROW(registry.find("dog")->resolve(parse("{barks: 0}"), "pet"), ConfigError);
  EXPECT_EQ(registry.find("dog")->resolve(Config(), "pet").to_flow(), "{barks: 1}");
}

TEST(RegistryTest, LaterRegistrationOfANameReplacesTheFirst) {
  auto registry = animals();
  registry.add<LoudCat>("cat");
  EXPECT_EQ(registry.names(), (std::vector<std::string>{"dog", "cat"}));
  EXPECT_EQ(registry.make("cat", Config(), "pet")->sound(), "MEOW");
}

TEST(RegistryTest, AliasHasDefaultsOfItsOwn) {
  auto registry = animals();
  registry.add_alias("loud dog", "dog", parse("{barks: 3}"), "barks more");
  EXPECT_EQ(registry.names(), (std::vector<std::string>{"dog", "cat", "loud dog"}));
  const auto dog = registry.make("loud dog", Config(), "pet");
  EXPECT_EQ(dog->sound(), "woofwoofwoof");
  EXPECT_EQ(registry.make("loud dog", parse("{barks: 2}"), "pet")->sound(), "woofwoof");
  EXPECT_EQ(dog->init_name(), "dog");
  EXPECT_EQ(dog->init_options().to_flow(), "{barks: 3}");
  const auto& item = registry.require("loud dog");
  EXPECT_EQ(item.doc, "barks more");
  EXPECT_EQ(item.alias_of.to_flow(), "{name: dog, barks: 3}");
  EXPECT_EQ(item.fields[0].default_value, "3");
  EXPECT_EQ(item.resolve(Config(), "pet").to_flow(), "{barks: 3}");
  EXPECT_THROW(registry.make("loud dog", parse("{bark: 1}"), "pet"), ConfigError);
  EXPECT_THROW(registry.make("loud dog", parse("loudly"), "pet"), ConfigError);
  EXPECT_TRUE(registry.require("dog").alias_of.is_null());
  EXPECT_THROW(registry.add_alias("kitten", "kat", Config()), ConfigError);
}

TEST(RegistryTest, DescribesWhatItHolds) {
  const auto registry = animals();
  EXPECT_EQ(registry.find("dog")->doc, "barks");
  ASSERT_EQ(registry.find("dog")->fields.size(), 1U);
  EXPECT_EQ(registry.find("dog")->fields[0].constraint, "at least 1");
  EXPECT_TRUE(registry.find("cat")->fields.empty());
  EXPECT_EQ(registry.find("cow"), nullptr);
}

TEST(BuildableTest, RemembersHowItWasMade) {
  const auto dog = animals().make("dog", parse("{barks: 3}"), "pet");
  EXPECT_EQ(dog->init_name(), "dog");
  EXPECT_EQ(dog->init_options().to_flow(), "{barks: 3}");
  ASSERT_TRUE(dog->can_rebuild());
  const auto second = std::dynamic_pointer_cast<Dog>(dog->rebuild());
  ASSERT_NE(second, nullptr);
  EXPECT_NE(std::static_pointer_cast<Animal>(second), dog);
  EXPECT_EQ(second->sound(), "woofwoofwoof");
  EXPECT_TRUE(second->can_rebuild());
}

TEST(BuildableTest, MakeRemembersToo) {
  const auto dog = make<Dog>({.barks = 2});
  EXPECT_EQ(dog->sound(), "woofwoof");
  EXPECT_NE(dog->init_name().find("Dog"), std::string::npos);
  EXPECT_EQ(std::dynamic_pointer_cast<Dog>(dog->rebuild())->sound(), "woofwoof");
  EXPECT_EQ(make<Cat>()->sound(), "meow");
}

TEST(BuildableTest, MakeChecksOptions) {
  try {
    make<Dog>({.barks = 0});
    FAIL() << "no exception";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("Dog.barks must be at least 1; got 0"), std::string::npos) << error.what();
  }
}

TEST(BuildableTest, ObjectMadeByHandCannotBeMadeAgain) {
  const auto dog = std::make_shared<Dog>(DogOptions{});
  EXPECT_FALSE(dog->can_rebuild());
  try {
    dog->rebuild();
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("levin::make"), std::string::npos);
  }
}

}  // namespace
}  // namespace levin
