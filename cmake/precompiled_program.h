// What programs include beside what the library's sources do.
#pragma once

#include "precompiled.h"

#include <levin/levin.h>
#include <torch/torch.h>
