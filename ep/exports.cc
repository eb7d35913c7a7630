// The three functions that the library exports.
