// Objects of Foundation, made from C++.

#pragma once

#import <Foundation/Foundation.h>

#include <string>
#include <vector>

// The getter of a property.
#define METALSIM_PROPERTY(type, name, value) \
  - (type)name {                             \
    return value;                            \
  }

namespace metalsim {

void add_to_pool(id object);
NSString* new_string(const std::string& text); // the caller releases it
NSString* string(const std::string& text);
NSError* error(const std::string& text);
NSArray* array(const std::vector<std::string>& texts);

} // namespace metalsim
