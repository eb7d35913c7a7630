// Written by tools/derive_coefficients.py, which says what each constant is; do not edit.
#pragma once

namespace normfuse {

// log2(e) as the sum of two floats; half of it as one.
constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLog2ELow = 0x1.4ae0cp-26f;
constexpr float kHalfLog2E = 0x1.715476p-1f;

// log(2) as the sum of two floats, the first of 9 bits: its product with an exponent is exact.
constexpr float kLn2 = 0x1.63p-1f;
constexpr float kLn2Low = -0x1.bd0106p-13f;

// 2^f on [-1/2, 1/2]; relative error 3e-09.
constexpr float kExp2[7] = {0x1p+0f,        0x1.62e43p-1f,   0x1.ebfbdcp-3f, 0x1.c6af7ap-5f,
                            0x1.3b2dd2p-7f, 0x1.5f0946p-10f, 0x1.417a5cp-13f};

// 2^f on [-1/64, 1/64], relative error 5.3e-08, and 2^(i/32).
constexpr float kExp2ThirtySecond[3] = {0x1p+0f, 0x1.62e584p-1f, 0x1.ebfbeap-3f};
constexpr float kExp2Table[32] = {
    0x1p+0f,        0x1.059b0ep+0f, 0x1.0b5586p+0f, 0x1.11301ep+0f, 0x1.172b84p+0f, 0x1.1d4874p+0f, 0x1.2387a6p+0f,
    0x1.29e9ep+0f,  0x1.306fep+0f,  0x1.371a74p+0f, 0x1.3dea64p+0f, 0x1.44e086p+0f, 0x1.4bfdaep+0f, 0x1.5342b6p+0f,
    0x1.5ab07ep+0f, 0x1.6247ecp+0f, 0x1.6a09e6p+0f, 0x1.71f75ep+0f, 0x1.7a1148p+0f, 0x1.82589ap+0f, 0x1.8ace54p+0f,
    0x1.93737cp+0f, 0x1.9c4918p+0f, 0x1.a5503cp+0f, 0x1.ae89fap+0f, 0x1.b7f77p+0f,  0x1.c199bep+0f, 0x1.cb720ep+0f,
    0x1.d5818ep+0f, 0x1.dfc974p+0f, 0x1.ea4afap+0f, 0x1.f50766p+0f};

// 2^f on [-1/16, 1/16], relative error 2.6e-08; 2^(i/8) is in kExp2Table.
constexpr float kExp2Eighth[4] = {0x1p+0f, 0x1.62e432p-1f, 0x1.ec0c26p-3f, 0x1.c68fa2p-5f};

// (exp(f) - 1 - f) / f^2 on [-log(2) / 2, log(2) / 2]; error relative to exp(f) - 1: 1.4e-08.
constexpr float kExpm1[5] = {0x1.fffffep-2f, 0x1.5554b4p-3f, 0x1.5556f6p-5f, 0x1.122534p-7f, 0x1.6b97b6p-10f};

// log(1 + e) / e on [0, 1]; relative error 8.9e-10.
constexpr float kLog1p[11] = {0x1p+0f,        -0x1.fffff8p-2f, 0x1.5553b6p-2f, -0x1.ffc59ep-3f,
                              0x1.978b54p-3f, -0x1.4a72b2p-3f, 0x1.ff28d8p-4f, -0x1.54f16cp-4f,
                              0x1.58ff44p-5f, -0x1.c0a2p-7f,   0x1.113634p-9f};

// Gelu: root of tail(-x) from -8, -7.5 ... -0.5 on; weighted error 4.1e-08.
alignas(64) constexpr float kGeluRoot[7][16] = {
    {0x0p+0f, 0x1.7f9dp-23f, 0x1.2fae2p-20f, 0x1.a94876p-18f, 0x1.077c8p-15f, 0x1.20fe38p-13f, 0x1.18b3f8p-11f,
     0x1.e33446p-10f, 0x1.70d17cp-8f, 0x1.f3c894p-7f, 0x1.2cfb6p-5f, 0x1.42c54ap-4f, 0x1.34e722p-3f, 0x1.08ac98p-2f,
     0x1.97e006p-2f, 0x1.1c6574p-1f},
    {0x1.72ae04p-20f, 0x1.6db3bcp-21f, 0x1.0ee638p-18f, 0x1.615994p-16f, 0x1.95a932p-14f, 0x1.99bfd2p-12f,
     0x1.6bf7a6p-10f, 0x1.1c24dcp-8f, 0x1.859ef2p-7f, 0x1.d4b8b4p-6f, 0x1.ee139ap-5f, 0x1.c78c9cp-4f, 0x1.6e8ba6p-3f,
     0x1.008f0ap-2f, 0x1.37084ep-2f, 0x1.44852cp-2f},
    {-0x1.41a298p-16f, 0x1.5230e4p-20f, 0x1.d1a55cp-18f, 0x1.18d6bep-15f, 0x1.284cb6p-13f, 0x1.10edd2p-11f,
     0x1.b5f9eap-10f, 0x1.312224p-8f, 0x1.6fa1fp-7f, 0x1.7ca8eep-6f, 0x1.4f9792p-5f, 0x1.eff06ap-5f, 0x1.2a2fa2p-4f,
     0x1.104dcep-4f, 0x1.2761f2p-5f, -0x1.6f5dfep-7f},
    {0x1.0ae688p-13f, 0x1.846cd2p-20f, 0x1.f5385p-18f, 0x1.17f1cep-15f, 0x1.0e452p-13f, 0x1.c180b4p-12f,
     0x1.402accp-10f, 0x1.8406d2p-9f, 0x1.8ad2e6p-8f, 0x1.49e0d6p-7f, 0x1.af6d2ep-7f, 0x1.848a2p-7f, 0x1.8df8c6p-9f,
     -0x1.91e9ep-7f, -0x1.c246eap-6f, -0x1.0e255ap-5f},
    {-0x1.ab2c7ap-12f, 0x1.811cfcp-20f, 0x1.af5002p-18f, 0x1.a4418ep-16f, 0x1.613d02p-14f, 0x1.fb919ap-13f,
     0x1.3486d2p-11f, 0x1.33909ep-10f, 0x1.e2064ep-10f, 0x1.056bf2p-9f, 0x1.9feb64p-11f, -0x1.2adbbep-9f,
     -0x1.8b4a16p-8f, -0x1.113a6p-7f, -0x1.8c2d04p-8f, -0x1.18be26p-12f},
    {0x1.4b0372p-11f, 0x1.aeaf62p-22f, 0x1.2a748p-19f, 0x1.41efcp-17f, 0x1.166e3ep-15f, 0x1.80c6c4p-14f,
     0x1.96d272p-13f, 0x1.3f42aep-12f, 0x1.1e20c4p-12f, -0x1.6b65eap-14f, -0x1.e20828p-11f, -0x1.cbae18p-10f,
     -0x1.0b8ca4p-9f, -0x1.a7082p-13f, 0x1.1bc50ep-9f, 0x1.39fcb6p-8f},
    {-0x1.8bbbdp-12f, 0x1.e1f92cp-21f, 0x1.9d24dcp-19f, 0x1.2328bcp-17f, 0x1.446a6ap-16f, 0x1.07a568p-15f,
     0x1.f9be14p-16f, -0x1.37245ep-16f, -0x1.0e10c8p-13f, -0x1.1a9fe6p-12f, -0x1.e855eap-13f, 0x1.5812bap-14f,
     0x1.98404p-11f, 0x1.9d2f14p-11f, 0x1.8a2932p-12f, -0x1.4f1a98p-10f},
};

// GeluTanh: root of tail(-x) from -8, -7.5 ... -0.5 on; weighted error 2.1e-08.
alignas(64) constexpr float kGeluTanhRoot[8][16] = {
    {0x0p+0f, 0x1.923284p-31f, 0x1.38713ep-26f, 0x1.4db414p-22f, 0x1.f76164p-19f, 0x1.13640ep-15f, 0x1.c0fc72p-13f,
     0x1.1813b2p-10f, 0x1.12a352p-8f, 0x1.b2c95p-7f, 0x1.1d3fc8p-5f, 0x1.3e2a2cp-4f, 0x1.3491f6p-3f, 0x1.08f62p-2f,
     0x1.981248p-2f, 0x1.1c6986p-1f},
    {0x1.59046p-30f, 0x1.57d792p-28f, 0x1.d840b8p-24f, 0x1.bbdc7ep-20f, 0x1.24a81p-16f, 0x1.15d796p-13f,
     0x1.85e8d2p-11f, 0x1.9f40fep-9f, 0x1.58b828p-7f, 0x1.ca687cp-6f, 0x1.f5c40ep-5f, 0x1.cfe11cp-4f, 0x1.71b8d8p-3f,
     0x1.00ca6ap-2f, 0x1.36a064p-2f, 0x1.4454bp-2f},
    {-0x1.467a78p-26f, 0x1.1487bap-26f, 0x1.545376p-22f, 0x1.186afcp-18f, 0x1.401288p-15f, 0x1.040e86p-12f,
     0x1.34930cp-10f, 0x1.121c32p-8f, 0x1.75e29p-7f, 0x1.91b65p-6f, 0x1.5cb8ecp-5f, 0x1.f2e358p-5f, 0x1.255bbep-4f,
     0x1.0b9186p-4f, 0x1.26f7c4p-5f, -0x1.6207a6p-7f},
    {0x1.59e222p-23f, 0x1.4854aap-25f, 0x1.43dd0cp-21f, 0x1.c17996p-18f, 0x1.b2df4cp-15f, 0x1.2874aep-12f,
     0x1.21b242p-10f, 0x1.9d8ea4p-9f, 0x1.b6881ap-8f, 0x1.5e9cd8p-7f, 0x1.a6a874p-7f, 0x1.5de6c2p-7f, 0x1.34dd0ep-9f,
     -0x1.80164ap-7f, -0x1.bc9e1ap-6f, -0x1.152b36p-5f},
    {-0x1.70ae3ap-21f, 0x1.13d9aap-25f, 0x1.697532p-21f, 0x1.e3f9dcp-18f, 0x1.958a72p-15f, 0x1.c5bbbap-13f,
     0x1.5d2f2ep-11f, 0x1.7305d4p-10f, 0x1.0c4b3p-9f, 0x1.c71aeap-10f, -0x1.8cfc2ap-14f, -0x1.3b6dfp-9f,
     -0x1.461304p-8f, -0x1.f990d6p-8f, -0x1.3e157ap-8f, 0x1.a1de54p-9f},
    {0x1.b53d1cp-20f, 0x1.141ba2p-23f, 0x1.2553cp-20f, 0x1.d55d62p-18f, 0x1.15afb2p-15f, 0x1.d1afd6p-14f,
     0x1.016706p-12f, 0x1.539f48p-12f, 0x1.7c6c08p-14f, -0x1.39dff8p-12f, -0x1.34a514p-14f, -0x1.7c605cp-10f,
     -0x1.c4ab3cp-9f, -0x1.438a5ap-10f, -0x1.21b4e8p-9f, -0x1.25b1fcp-8f},
    {-0x1.0a16cap-19f, -0x1.22959p-24f, -0x1.801ae6p-25f, 0x1.24fa14p-19f, 0x1.ea950ep-17f, 0x1.65cfd2p-15f,
     0x1.de835ap-15f, -0x1.dd168ap-17f, -0x1.72edb2p-14f, -0x1.2ba03cp-12f, -0x1.57167ap-10f, 0x1.c2bcb4p-13f,
     0x1.a50d22p-9f, 0x1.f2baacp-10f, 0x1.a9bd12p-8f, 0x1.625daap-7f},
    {0x1.092e44p-20f, 0x1.45824ap-23f, 0x1.000448p-20f, 0x1.db7482p-19f, 0x1.cab7c8p-18f, 0x1.5d3b28p-19f,
     -0x1.2679e6p-16f, -0x1.fee004p-16f, -0x1.7735d6p-15f, 0x1.12ce1ap-14f, 0x1.64f60ep-11f, -0x1.1802c2p-13f,
     -0x1.aeac78p-10f, -0x1.5a446cp-11f, -0x1.bb347ap-9f, -0x1.95898ep-8f},
};

// Gelu: tail(a) * 2^(kHalfLog2E a^2) to a = 8, as a ratio; weighted error 1.4e-08.
constexpr float kGeluAbove[5] = {0x1p-1f, 0x1.390acep-2f, 0x1.73dd2cp-4f, 0x1.62c7dcp-7f, 0x1.8e85ep-20f};
constexpr float kGeluBelow[5] = {0x1p+0f, 0x1.68c788p+0f, 0x1.9cb0bp-1f, 0x1.cef844p-3f, 0x1.be786p-6f};

// Gelu: tail(a) * 2^(kHalfLog2E a^2) to a = 8, as a ratio; weighted error 3.8e-08.
constexpr float kGeluRowsAbove[4] = {0x1p-1f, 0x1.4f182ap-2f, 0x1.9c2156p-4f, 0x1.a33acp-7f};
constexpr float kGeluRowsBelow[5] = {0x1p+0f, 0x1.73ce28p+0f, 0x1.b85b4ep-1f, 0x1.01915cp-2f, 0x1.06efa6p-5f};

// Gelu: (Phi(x) - 1/2) / x in x^2, to 22, as a ratio; error of Gelu 3.9e-06. Where Phi is 1, and below 0.
constexpr float kGeluBytesAbove[4] = {0x1.987dc8p-2f, 0x1.ca6a8ap-6f, 0x1.f27b42p-9f, 0x1.0e146ap-15f};
constexpr float kGeluBytesBelow[4] = {0x1p+0f, 0x1.e4be6ap-3f, 0x1.89c3fep-6f, 0x1.2b6108p-10f};
constexpr float kGeluBytesOne = 0x1.2d566cp+2f;
constexpr float kGeluBytesZero = -0x1.3p+2f;

// erf(x) / x - 1 in x^2, to x = kErfNear; error relative to erf(x) / x: 1.4e-08.
constexpr float kErfNear = 0x1.cp-1f;
constexpr float kErf[6] = {0x1.06eba6p-3f, -0x1.8126f2p-2f, 0x1.ce1d7p-4f,
                           -0x1.b6c1dp-6f, 0x1.48b17p-8f,   -0x1.40d6aap-11f};

// log2(1 - erf(a)) from there to 4, where erf(a) is 1; error relative to erf(a): 1.9e-09.
constexpr float kErfExponent[7] = {-0x1.941414p-13f, -0x1.a094a2p+0f, -0x1.d65508p-1f, -0x1.34401ep-3f,
                                   0x1.08f9aep-5f,   -0x1.245f88p-8f, 0x1.3010d4p-12f};

// pi as the sum of three floats, and 1 / pi.
constexpr float kPi = 0x1.921fb6p+1f;
constexpr float kPiMiddle = -0x1.777a5cp-24f;
constexpr float kPiLow = -0x1.ee59dap-49f;
constexpr float kInversePi = 0x1.45f306p-2f;

// (sin(r) - r) / r^3 in r^2, to r = 1.6; error relative to sin(r): 5e-10.
constexpr float kSine[5] = {-0x1.555556p-3f, 0x1.111136p-7f, -0x1.a023acp-13f, 0x1.72c50ap-19f, -0x1.b4f922p-26f};

// GeluTanh: x / (1 + 2^-(x (linear + cubic x^2))), each the sum of two floats.
constexpr float kGeluTanhLinear = 0x1.26aecp+1f;
constexpr float kGeluTanhLinearLow = 0x1.0de73ap-22f;
constexpr float kGeluTanhCubic = 0x1.a5a7dp-4f;
constexpr float kGeluTanhCubicLow = -0x1.151aaep-29f;

// Gelu: x tail(-x) around 0, -7.75, -7.5 ... -0.25; error 4.4e-08.
alignas(64) constexpr float kGeluDip[5][32] = {
    {0x0p+0f,          0x0p+0f,          -0x1.0d757ep-42f, -0x1.a9444cp-40f, -0x1.3b36f4p-37f, -0x1.b6ea2ep-35f,
     -0x1.1f057ap-32f, -0x1.6094a8p-30f, -0x1.96ca64p-28f, -0x1.b8cba2p-26f, -0x1.c0946cp-24f, -0x1.acb442p-22f,
     -0x1.80bcf6p-20f, -0x1.443694p-18f, -0x1.008418p-16f, -0x1.7d1026p-15f, -0x1.09ad7ep-13f, -0x1.5babc4p-12f,
     -0x1.aae05p-11f,  -0x1.eb9b5ap-10f, -0x1.096698p-8f,  -0x1.0c832ep-7f,  -0x1.fcb21ep-7f,  -0x1.c2a498p-6f,
     -0x1.74bcf8p-5f,  -0x1.1f24ep-4f,   -0x1.9a76a4p-4f,  -0x1.0e76a2p-3f,  -0x1.44ed0cp-3f,  -0x1.5c198p-3f,
     -0x1.3bf144p-3f,  -0x1.9aecbap-4f},
    {0x1.000002p-1f,   -0x1.364d4p-42f,  -0x1.f80fd6p-40f, -0x1.809144p-37f, -0x1.1340d2p-34f, -0x1.719d1ep-32f,
     -0x1.d18524p-30f, -0x1.12ecfp-27f,  -0x1.307d26p-25f, -0x1.3c27d4p-23f, -0x1.33b0e2p-21f, -0x1.189d3cp-19f,
     -0x1.df8188p-18f, -0x1.7facd6p-16f, -0x1.1f6482p-14f, -0x1.92db38p-13f, -0x1.080a3cp-11f, -0x1.436c96p-10f,
     -0x1.71d866p-9f,  -0x1.8a59fcp-8f,  -0x1.876f5ap-7f,  -0x1.68e6b2p-6f,  -0x1.341cd8p-5f,  -0x1.e4e306p-5f,
     -0x1.5d1cbcp-4f,  -0x1.c65b1ep-4f,  -0x1.050eaap-3f,  -0x1.f66b98p-4f,  -0x1.554152p-4f,  0x1.96d698p-11f,
     0x1.0f5f98p-3f,   0x1.37f054p-2f},
    {0x1.98856ep-2f,   -0x1.4fb12p-36f,  -0x1.d0061ep-38f, -0x1.55bd84p-35f, -0x1.d79872p-33f, -0x1.30cb48p-30f,
     -0x1.70f176p-28f, -0x1.a218eap-26f, -0x1.bb6d2p-24f,  -0x1.b7f97cp-22f, -0x1.983c2p-20f,  -0x1.620904p-18f,
     -0x1.1ecc2p-16f,  -0x1.b1b81ap-15f, -0x1.31d8dap-13f, -0x1.91d5c6p-12f, -0x1.eb24d2p-11f, -0x1.16bb84p-9f,
     -0x1.251bfep-8f,  -0x1.1ca728p-7f,  -0x1.fc4832p-7f,  -0x1.9e612ap-6f,  -0x1.3122bep-5f,  -0x1.8e255ap-5f,
     -0x1.ba4b88p-5f,  -0x1.777952p-5f,  -0x1.093e9ap-6f,  0x1.474edep-5f,   0x1.ef8fc4p-4f,   0x1.bb464p-3f,
     0x1.3b735p-2f,    0x1.7f92aap-2f},
    {0x1.7433eap-14f,  -0x1.80602p-39f,  -0x1.2555cep-36f, -0x1.9eeda6p-34f, -0x1.128faap-31f, -0x1.53d552p-29f,
     -0x1.893a5ep-27f, -0x1.a92cf8p-25f, -0x1.ad56a8p-23f, -0x1.94a18p-21f,  -0x1.63a4fcp-19f, -0x1.2341c4p-17f,
     -0x1.bc0238p-16f, -0x1.3a9126p-14f, -0x1.9d958p-13f,  -0x1.f77586p-12f, -0x1.1ae6e8p-10f, -0x1.245f74p-9f,
     -0x1.145216p-8f,  -0x1.d99e54p-8f,  -0x1.6b0e34p-7f,  -0x1.e57ab6p-7f,  -0x1.0bded4p-6f,  -0x1.99d1fap-7f,
     0x1.6f1fa6p-13f,  0x1.85094ap-6f,   0x1.d09c04p-5f,   0x1.7b7188p-4f,   0x1.ee44d8p-4f,   0x1.081842p-3f,
     0x1.c0dc92p-4f,   0x1.02b976p-4f},
    {-0x1.0dc888p-4f,  0x1.394336p-30f,  -0x1.0246bcp-35f, -0x1.5fae98p-33f, -0x1.bf3eecp-31f, -0x1.0976acp-28f,
     -0x1.25fc08p-26f, -0x1.2f7dbcp-24f, -0x1.23cba6p-22f, -0x1.050d52p-20f, -0x1.b20b9p-19f,  -0x1.4ed17ap-17f,
     -0x1.de5e6ap-16f, -0x1.3bc048p-14f, -0x1.7fde32p-13f, -0x1.abe95p-12f,  -0x1.b2cdbcp-11f, -0x1.8f0836p-10f,
     -0x1.45b9cp-9f,   -0x1.cc6366p-9f,  -0x1.092b12p-8f,  -0x1.94ea4cp-9f,  0x1.22d856p-11f,  0x1.fae4cep-8f,
     0x1.2716d8p-6f,   0x1.d996c4p-6f,   0x1.26bf36p-5f,   0x1.1734fep-5f,   0x1.478b7cp-6f,   -0x1.3ac8p-8f,
     -0x1.15650ap-5f,  -0x1.d4cc84p-5f},
};

}  // namespace normfuse
