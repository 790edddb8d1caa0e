// The part of Objective-C's run time that code asks for by name, for the simulated Apple GPU.
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct objc_class* Class;
typedef struct objc_object {
  Class isa;
}* id;
typedef struct objc_selector* SEL;
typedef bool BOOL;
#define YES true
#define NO false

// as in Apple's headers, where nil fits every pointer
#define nil nullptr
#define Nil nullptr

extern "C" {
Class object_getClass(id object);
Class object_setClass(id object, Class given);
const char* class_getName(Class of);
Class class_getSuperclass(Class of);
size_t class_getInstanceSize(Class of);
void metalsim_construct(Class of, id object); // what an object of the class has of C++
void metalsim_destruct(Class of, id object);
BOOL class_respondsToSelector(Class of, SEL selector);
const char* sel_getName(SEL selector);
}
