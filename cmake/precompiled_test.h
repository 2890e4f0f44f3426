// What tests include beside what the library's sources do. levin/levin.h is left out: with it every header of the library
// that changes would have all tests compiled again.
#pragma once

#include "precompiled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
