"""Names of directories that one program or another takes for something else."""

NAMES = (
    *("with blank", " lead", "trail ", "a%20b", "a%2Fb", "100%", "%E5%BA%93", "ha#sh", "que?ry"),
    *("plus+and&", "brack[et]", "br{a,c}e", "st*ar", "comma,here", "库存 店", "e\u0301", "quo'te"),
    *('dou"ble', "back\\slash", "col:on", "semi;colon", "~tilde", "tr.ail.", "new\nline"),
)
